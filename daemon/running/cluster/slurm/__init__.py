"""Slurm, by its commands sbatch, squeue and scancel. Nothing needs its accounting."""
