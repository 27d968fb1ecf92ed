"""What the comparison with the twin asks of OpenVINO's models: what they store, read without OpenVINO, and what they say."""
