"""A Result for people: printed on a terminal (`console`), kept as one HTML page (`html`)."""
