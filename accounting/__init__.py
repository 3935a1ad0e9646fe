"""Who used what: the Faust application over what workers say, and its windows."""
