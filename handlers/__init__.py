"""The heavy wing of ckptd: one module or package a stage, each run in a child process of its own."""
