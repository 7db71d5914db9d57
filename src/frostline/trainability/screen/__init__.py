"""What a plan shows: the report in a terminal, the page, what differs from another plan, bytes on devices."""
