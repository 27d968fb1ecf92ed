"""What single processes are asked and answer: a stage here or on another machine, a benchmark, a conversion, a check once more."""
