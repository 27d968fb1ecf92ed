"""An object store, or a folder, in which each version of a run is a folder with its manifest, and `latest.json` names the newest.

`target.py` knows the layout, `backend.py` what a store must be able to do; `folder.py`, `s3.py` and `clouds.py` are stores."""
