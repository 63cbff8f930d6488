"""The senses: what the agent may look at; nothing here changes the world but an annotation."""
