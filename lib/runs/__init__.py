"""Whatever survives a kill: finished runs, sweeps, the devices they run on."""
