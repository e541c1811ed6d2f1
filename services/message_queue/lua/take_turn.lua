#!lua flags=allow-oom
-- Tells whether it is time for something again, for one of all who ask.
--
-- ARGV     what, ms until the next time
-- Returns  1, or 0 when the last time is less than that ago
--
-- A script, because SET itself is refused by a full server, and what this is asked for helps to drain it.

return redis.call('SET', QUEUE .. ':' .. ARGV[1], 1, 'NX', 'PX', ARGV[2]) and 1 or 0
