"""What figures speak for, and whether they speak at all: intervals of differences, and which checkpoint and artifact to deploy. Pure."""
