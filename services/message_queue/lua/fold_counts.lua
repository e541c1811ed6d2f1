#!lua flags=allow-oom
-- Adds what other scripts counted to the totals, and to their minutes in keys of ten minutes each, as
-- queue_manager/telemetry/counters.py has them. Trims the events, with which they are written.
--
-- KEYS[1]  queue name
-- ARGV     maximum number of entries, seconds for which minutes are kept
-- Returns  1 if entries are left, else 0
--
-- Atomic, so that each entry is counted once. allow-oom, because it frees memory.

local TOTALS = QUEUE .. ':totals'
local MINUTES = QUEUE .. ':minutes:'
local FOLDED = QUEUE .. ':folded' -- the last event that was added up
local MAX_FOLDED_EVENTS = '10000' -- approximate number of events that are kept, for clients that reconnect
local KEPT = QUEUE .. ':folded:kept' -- `bytes` that were added up after the event `from`: to be kept
local MAX_KEPT_BYTES = 8 * 1024 * 1024 -- of these; as many again are kept before them
local MAX_FIELDS = 2000 -- a call adds about this many, and reads about this many bytes
local MAX_READ_BYTES = 512 * 1024
local READ_COUNT = 50
local IS_MEASURE = { wait = true, run = true, due_to_done = true }
local DURATION_BOUNDS = { -- ms, see queue_manager/telemetry/latency.py
  1, 2, 4, 8, 15, 30, 60, 125, 250, 500,
  1000, 2000, 4000, 8000, 15000, 30000, 60000, 120000, 240000, 480000,
  900000, 1800000, 3600000, 7200000, 14400000
}

local totals, minutes, fields_added, entries_read, bytes_read = {}, {}, 0, 0, 0

local function add(minute, name, amount)
  totals[name] = (totals[name] or 0) + amount
  minute[name] = (minute[name] or 0) + amount
end

local function bucket_of(duration)
  for _, bound in ipairs(DURATION_BOUNDS) do
    if duration <= bound then
      return string.format('%d', bound)
    end
  end
  return 'longer'
end

local function fold(entry)
  local fields = entry[2]
  -- Of the event, because the ids of new entries stay ahead after the clock was set back.
  local event_ms = string.match(fields[2], '^{"type":"[%w_]+","timestamp":(%d+)')
  local ended_ms = tonumber(event_ms or string.match(entry[1], '^%d+'))
  local number = math.floor(ended_ms / 60000)
  local minute = minutes[number] or {}
  minutes[number] = minute
  for i = 1, #fields, 2 do
    local name, amount = fields[i], tonumber(fields[i + 1])
    bytes_read = bytes_read + #fields[i + 1]
    if amount and IS_MEASURE[name] then
      local duration = math.max(ended_ms - math.floor(amount * 1000 + 0.5), 0)
      add(minute, name .. '.' .. bucket_of(duration), 1)
      add(minute, name .. '.sum', duration)
    elseif amount then
      add(minute, name, amount)
    end
  end
  fields_added, entries_read = fields_added + #fields / 2, entries_read + 1
end

local function is_full()
  return fields_added >= MAX_FIELDS or bytes_read >= MAX_READ_BYTES or entries_read >= tonumber(ARGV[1])
end

local after, is_end = redis.call('GET', FOLDED), false
while not is_end and not is_full() do
  local count = math.min(READ_COUNT, ARGV[1] - entries_read)
  local entries = redis.call('XRANGE', EVENTS, after and '(' .. after or '-', '+', 'COUNT', count)
  for _, entry in ipairs(entries) do
    fold(entry)
    after = entry[1]
  end
  is_end = #entries < count
end
if entries_read > 0 then
  redis.call('SET', FOLDED, after)
  if redis.call('HINCRBY', KEPT, 'bytes', bytes_read) > MAX_KEPT_BYTES then
    redis.call('XTRIM', EVENTS, 'MINID', '~', redis.call('HGET', KEPT, 'from') or '0')
    redis.call('HSET', KEPT, 'from', after, 'bytes', 0)
  end
  if not is_full() then -- all are added up
    redis.call('XTRIM', EVENTS, 'MAXLEN', '~', MAX_FOLDED_EVENTS)
  end
end
for name, amount in pairs(totals) do
  redis.call('HINCRBY', TOTALS, name, string.format('%.0f', amount))
end
for number, amounts in pairs(minutes) do
  if next(amounts) then
    local ten = MINUTES .. math.floor(number / 10)
    for name, amount in pairs(amounts) do
      redis.call('HINCRBY', ten, name .. ':' .. number % 10, string.format('%.0f', amount))
    end
    redis.call('EXPIRE', ten, ARGV[2])
  end
end
return is_full() and 1 or 0
