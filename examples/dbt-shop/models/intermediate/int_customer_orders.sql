select customer_id, count(*) as orders, min(ordered_on) as first_order from {{ ref('stg_orders') }} group by customer_id
