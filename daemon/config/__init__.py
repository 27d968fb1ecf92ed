"""From TOML and environment to typed settings; where everything lies."""
