#!lua flags=allow-oom
-- Reads messages by their entries.
--
-- KEYS[1]  queue name
-- ARGV     state, then for each message the stream and the id of its entry
-- Returns  {rows of {id, data, record, sid, stream}, entries scanned}, limited to one slice; an entry that is no longer
--          in that state has no row
--
-- Atomic, so that state and content of a message are consistent. reading.lua describes the limits of a slice.

local state = ARGV[1]
local last_delivered_ids = {}

local function is_in_state(row)
  if state ~= 'main' then
    return state_of(row.record) == state
  end
  last_delivered_ids[row.stream] = last_delivered_ids[row.stream] or (last_delivered(row.stream))
  return row.stream ~= TYPED and is_later_id(row.sid, last_delivered_ids[row.stream])
end

local rows, scanned = {}, 0
while scanned * 2 + 2 < #ARGV and not is_budget_spent() do
  local stream, sid = ARGV[scanned * 2 + 2], ARGV[scanned * 2 + 3]
  local entry = redis.call('XRANGE', stream, sid, sid)[1]
  scanned = scanned + 1
  if entry then
    local items = items_of({ stream = stream, rank = 0 }, { entry })
    read_records(items)
    local row = row_of(items[1], state)
    if row and is_in_state(row) then
      rows[#rows + 1] = returned_row(row)
    end
  end
end
return { rows, scanned }
