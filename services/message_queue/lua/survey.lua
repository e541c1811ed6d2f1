#!lua flags=allow-oom
-- Scans a slice of a state for matches, without returning the messages.
--
-- KEYS[1]  queue name
-- ARGV     state, priority levels, order, cursor of the previous slice ('' for the first), filter as in list.lua,
--          field to return of each match, or '' to count only
-- Returns  {matches as JSON: a list of [value or null, stream, sid], next cursor or '' at the end, entries that
--          matched, entries scanned}
--
-- Atomic, so that a message that changes its state is in the slice once. reading.lua describes the limits of a slice.

local state, levels, order, cursor, filter, field = unpack(ARGV)
filter = cjson.decode(filter)
filter.search = filter.search and string.lower(filter.search)
local next_block = blocks(state, tonumber(levels), order, cursor, filter)
local found, matched, scanned, ended = {}, 0, 0, ''

local function match_of(item)
  local value = item.id
  if field ~= 'id' then
    value = FIELD_READERS[field](item.record)
  end
  return { value == nil and cjson.null or value, item.stream, item.sid }
end

repeat
  local block
  block, ended = next_block()
  read_records(block)
  scanned = scanned + #block
  for _, item in ipairs(block) do
    if is_match(item, filter, state) then
      matched = matched + 1
      if field ~= '' then
        found[matched] = match_of(item)
      end
    end
  end
until ended == '' or is_budget_spent()
return { #found > 0 and cjson.encode(found) or '[]', ended, matched, scanned }
