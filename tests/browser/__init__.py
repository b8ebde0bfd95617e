"""A package, unlike the other folders of tests, because pytest ends fixtures of scope "package" for packages only."""
