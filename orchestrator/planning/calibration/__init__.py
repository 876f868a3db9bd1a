"""What finished runs say of a cluster's speeds."""
