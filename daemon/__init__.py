"""The light wing of ckptd: it watches, decides, records and supervises. It never imports torch or any other heavy library."""
