"""``ray.serve.llm`` and ``ray.data.llm``: programs whose models are engines of ``serving``."""
