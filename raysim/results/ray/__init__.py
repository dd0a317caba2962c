"""Looking into an emulated Ray cluster: state tables, status, causes of waiting, timelines."""
