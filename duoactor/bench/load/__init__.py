"""Methods under load: many streams at once, arrivals of three kinds, latency and fairness."""
