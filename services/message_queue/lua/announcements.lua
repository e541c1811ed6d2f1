-- Events: each is added to the stream, for clients that reconnect, and published on the channel. Next to the event, an
-- entry has what fold_counts.lua adds up: outcomes with their numbers, and measures with when a duration began.

local EVENTS = QUEUE .. ':events'
local counts = {}

-- Counts; announce() must follow.
local function add_count(name, amount)
  if amount > 0 then
    counts[#counts + 1], counts[#counts + 2] = name, number_text(amount)
  end
end

-- Measures a duration that ends now; announce() must follow. Takes seconds, as a text or a number.
local function add_duration(measure, since)
  local at = #counts
  counts[at + 1], counts[at + 2] = measure, type(since) == 'number' and string.format('%.3f', since) or since
end

local function array(ids)
  if #ids == 1 and not string.find(ids[1], '[^%w_.:@-]') then
    return '["' .. ids[1] .. '"]'
  end
  return #ids > 0 and cjson.encode(ids) or '[]'
end

-- Announces an event with these outcomes and measures, and no others.
local function announce_with(kind, payload, ...)
  local event = '{"type":"' .. kind .. '","timestamp":' .. NOW_MS_TEXT .. ',"payload":' .. payload .. '}'
  redis.call('XADD', EVENTS, 'MAXLEN', '~', MAX_EVENTS, '*', 'event', event, ...)
  redis.call('PUBLISH', QUEUE .. '_events', event)
end

local function announce(kind, payload)
  announce_with(kind, payload, unpack(counts))
  counts = {}
end

local function members_of(ids)
  return '"count":' .. number_text(#ids) .. ',"ids":' .. array(ids)
end

local function announce_ids(kind, ids)
  announce(kind, '{' .. members_of(ids) .. '}')
end
