#!lua flags=allow-oom
-- Adds the oldest counts of the other scripts to the totals, and to their minutes in keys of ten minutes each, as
-- queue_manager/telemetry/counters.py has them.
--
-- KEYS[1]  queue name
-- ARGV     maximum number of entries, seconds for which minutes are kept
-- Returns  the number of entries that were added up
--
-- Atomic, so that each entry is counted once. allow-oom, because it frees memory.

local TOTALS = QUEUE .. ':totals'
local MINUTES = QUEUE .. ':minutes:'

local ids, totals, minutes = {}, {}, {}
for _, entry in ipairs(redis.call('XRANGE', COUNTS, '-', '+', 'COUNT', ARGV[1])) do
  local id, fields = entry[1], entry[2]
  ids[#ids + 1] = id
  local minute = math.floor(string.match(id, '^%d+') / 60000)
  minutes[minute] = minutes[minute] or {}
  for i = 1, #fields, 2 do
    local name, amount = fields[i], tonumber(fields[i + 1])
    totals[name] = (totals[name] or 0) + amount
    minutes[minute][name] = (minutes[minute][name] or 0) + amount
  end
end
if #ids == 0 then
  return 0
end
for name, amount in pairs(totals) do
  redis.call('HINCRBY', TOTALS, name, string.format('%.0f', amount))
end
for minute, amounts in pairs(minutes) do
  local ten = MINUTES .. math.floor(minute / 10)
  for name, amount in pairs(amounts) do
    redis.call('HINCRBY', ten, name .. ':' .. minute % 10, string.format('%.0f', amount))
  end
  redis.call('EXPIRE', ten, ARGV[2])
end
redis.call('XDEL', COUNTS, unpack(ids))
return #ids
