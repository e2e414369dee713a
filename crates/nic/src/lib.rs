//! A software MRC NIC over UDP sockets.
