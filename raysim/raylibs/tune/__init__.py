"""Ray Tune: many trials of one program, their resources, and who of them goes on."""
