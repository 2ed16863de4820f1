"""Many files on many machines: `slm-run classify --engine ray`. Only `cluster` and `pipeline` import ray."""
