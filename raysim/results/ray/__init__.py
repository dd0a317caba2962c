"""Looking into an emulated Ray cluster: tables, status, causes of waiting, traces."""
