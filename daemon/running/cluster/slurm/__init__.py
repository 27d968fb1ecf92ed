"""Slurm, by its commands sbatch, squeue and scancel. Nothing needs its accounting, which is asked where there is some."""
