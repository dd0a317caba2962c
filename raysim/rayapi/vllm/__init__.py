"""``import vllm`` in programs: engines in actors, their workers, weights that are sent to them."""
