"""FK server over MCP: tools, resources and prompts; everything else is in ``fk_core``."""
