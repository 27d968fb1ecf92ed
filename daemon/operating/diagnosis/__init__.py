"""What `ckptd check` and `ckptd formats` look at: settings, rights, what is installed."""
