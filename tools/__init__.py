"""The senses: what the agent and its language model may look at; nothing here changes the world but an annotation."""
