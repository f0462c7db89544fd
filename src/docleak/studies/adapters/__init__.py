"""What a vision-language model gives away when its gradient, or its adapters over rounds, are sent."""
