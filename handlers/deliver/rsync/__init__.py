"""A folder of another machine as a delivery target, over the stock rsync and ssh."""
