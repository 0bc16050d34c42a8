"""Agents over a store; installed as `descsim_tools.agents`. Empty until the first one lands."""
