"""One plan in full: what a response, a ranked plan or an evaluation says of it, completed from its request, and its neighbours."""
