"""The published folder of graphs: what lies beside the graphs, its tokenizer, its example, and how it is opened and played back."""
