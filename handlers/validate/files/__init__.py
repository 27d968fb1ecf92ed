"""What the files beside the weights say, an artifact's and the checkpoint's: tokenizer, template, settings of generation and runtimes."""
