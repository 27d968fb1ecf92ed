"""What people open: report.html, the README.md of an export and of each artifact, and the page of `ckptd bench`."""
