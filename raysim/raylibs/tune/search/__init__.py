"""Search spaces and who proposes trials from them."""
