"""Pictures and sounds for models that read them: made up here, and prepared by the processor that lies in a model's folder."""
