"""Which visual tokens a drafter sees: the visual bank, and the router and selectors over it."""
