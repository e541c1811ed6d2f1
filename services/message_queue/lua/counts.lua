#!lua flags=no-writes
-- Counts the messages by state.
--
-- KEYS[1]  queue name
-- ARGV     number of priorities
-- Returns  {now in ms, first deadline in ms or 0, waiting per priority, starting at 0, processing, dead, acknowledged,
--          archived, total acknowledged, overdue, total requeued and total dead-lettered by sweeps}
--
-- Atomic, so that a message that changes its state is counted once.

local waiting, processing = {}, 0
for priority = 0, HIGHEST_PRIORITY do
  local stream = stream_of(priority)
  local _, pending = last_delivered(stream)
  waiting[#waiting + 1] = math.max(redis.call('XLEN', stream) - pending, 0) -- others may delete pending ones
  processing = processing + pending
end
local _, typed = last_delivered(TYPED)
local _, manual = last_delivered(MANUAL)
return {
  NOW_MS,
  tonumber(redis.call('ZRANGE', DEADLINES, 0, 0, 'WITHSCORES')[2]) or 0,
  waiting,
  processing + typed + manual,
  redis.call('XLEN', DEAD),
  redis.call('XLEN', ACKNOWLEDGED),
  redis.call('XLEN', ARCHIVED),
  tonumber(redis.call('GET', TOTAL_ACKNOWLEDGED) or 0),
  redis.call('ZCOUNT', DEADLINES, '-inf', NOW_MS),
  tonumber(redis.call('GET', TOTAL_REQUEUED) or 0),
  tonumber(redis.call('GET', TOTAL_DEAD) or 0),
}
