"""The composition root; `monitoring/`: what people are told, `diagnosis/`: what `ckptd check` asks, `integrity/`: fsck and repair."""
