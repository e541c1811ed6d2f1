#!lua flags=allow-oom
-- Grants a turn to one caller per period.
--
-- KEYS[1]  queue name
-- ARGV     name of the turn, period in ms
-- Returns  1, or 0 if the last turn was less than a period ago
--
-- Atomic, as a single SET. A script, because a full server refuses a plain SET, and the work behind the turn frees
-- memory.

return redis.call('SET', QUEUE .. ':' .. ARGV[1], 1, 'NX', 'PX', ARGV[2]) and 1 or 0
