"""Events for clients that stay connected: Server-Sent Events and Socket.IO."""
