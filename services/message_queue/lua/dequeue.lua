#!lua flags=allow-oom
-- Delivers the next messages to a consumer and locks them: highest priority first, then oldest.
--
-- KEYS[1]  queue name
-- ARGV and Returns: see delivery.lua. Fewer messages are returned if their payloads are large.
--
-- Atomic, so that a delivered message always has its attempt counted and its deadline set. allow-oom, so that a full
-- server can be drained.

-- Returns false at the end of the slice.
local function deliver_from(stream)
  repeat
    local entries = next_entries(stream)
    for _, entry in ipairs(entries) do
      local id, record, data = read_entry(stream, entry[1], entry[2])
      handled_bytes = handled_bytes + #(data_of(entry[2]) or '')
      if id then
        unindex(id, record)
        deliver(id, record, data)
      else
        handled = handled + 2
      end
    end
    if count_wanted() == 0 or is_slice_full() then
      return false
    end
  until #entries == 0
  return true
end

highest_priority = ARGV[5] - 1
next_read = count_wanted() == 1 and 1 or next_read
local higher = {}
for priority = highest_priority, 1, -1 do
  higher[#higher + 1] = QUEUE .. '_p' .. priority
end
local is_complete = true
if #higher > 0 and redis.call('EXISTS', unpack(higher)) > 0 then
  for _, stream in ipairs(higher) do
    is_complete = is_complete and (redis.call('XLEN', stream) == 0 or deliver_from(stream))
  end
end
return finish_deliveries(is_complete and deliver_from(QUEUE))
