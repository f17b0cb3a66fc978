"""Every way in which a machine may fail to answer, tried one at a time on the whole doctor."""
