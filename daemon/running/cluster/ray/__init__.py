"""Ray, by detached actors on a cluster that exists. The daemon itself never imports Ray: another process is connected (`driver.py`)."""
