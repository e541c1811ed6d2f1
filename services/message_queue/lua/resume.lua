#!lua flags=allow-oom
-- Resumes a paused type: its messages are delivered again, in the order in which they were added.
--
-- KEYS[1]  queue name
-- ARGV     type
-- Returns  1, or 0 if it is not paused
--
-- Atomic and independent of the number of messages: the dequeues that follow deliver what is parked. allow-oom, so that
-- a full server can be drained.

local kind = ARGV[1]
if not is_paused(kind) then
  return 0
end
if redis.call('EXISTS', PARKED .. kind) == 1 then
  redis.call('HSET', PAUSES, kind, '')
else
  redis.call('HDEL', PAUSES, kind)
end
redis.call('XADD', RESUMES, 'MAXLEN', 1, '*', 'type', kind) -- wakes the consumers that wait
announce('resume', '{"count":0,"ids":[],"message_type":' .. cjson.encode(kind) .. '}')
return 1
