"""The heart: how events become state, how the chain is computed and checked. Pure; imports contract only."""
