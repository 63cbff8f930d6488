"""How a candidate earns traffic: rehearsal, search, judgement, rollout and the gateways."""
