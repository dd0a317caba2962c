"""Ray's libraries: Train, Data, Serve, Tune, RLlib, as client programs of Ray Core."""
